"""Policy weights on this machine: download, storage, publication, retention."""
