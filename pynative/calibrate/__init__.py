"""`plan --calibrate`: measures this machine and writes a device file for the planner."""
