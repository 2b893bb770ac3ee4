"""`plan --calibrate`: the machine that this runs on, measured as a kind of device."""
