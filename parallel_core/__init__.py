"""The plan: who owns what, what runs when, which bytes move. Plain Python and numpy, no device, no MindSpore."""
