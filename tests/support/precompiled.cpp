// Nothing: its precompiled headers are what tests reuse.
