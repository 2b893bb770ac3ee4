"""The part of training that needs no device: configuration, data, checkpoints, and the plan (who owns what, what runs
when, which bytes move). Python and numpy; MindSpore is not imported."""
