"""Initial models: imported, exported, or trained from nothing."""
