"""Committee selection, verdict quorums and the exclusion of equivocating validators."""
