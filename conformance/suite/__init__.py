"""The checks, as pytest modules. They walk what the other packages define."""
