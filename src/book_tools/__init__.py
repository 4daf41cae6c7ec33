"""Commands that write `data/` and folders for a hub; chapters read what they wrote."""
