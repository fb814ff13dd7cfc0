"""One simulation or many: a plan in, numbers out; seeds that once showed a defect."""
