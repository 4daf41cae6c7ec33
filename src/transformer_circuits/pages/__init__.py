"""Pages that are made, not written: the build runs these modules."""
