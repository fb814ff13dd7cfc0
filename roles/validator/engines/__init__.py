"""What verifies: one prefill of a claimed sequence instead of its step-by-step generation."""
