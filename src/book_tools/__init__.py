"""Commands that write `data/` and releases; chapters read what they wrote."""
