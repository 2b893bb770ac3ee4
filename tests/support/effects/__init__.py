"""Every option of the table, given a second legal value beside six models: what changes, or what is said of it."""
