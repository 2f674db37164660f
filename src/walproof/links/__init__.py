"""The wire between members: delay, jitter, loss, rate, cuts; and the check of what was really obtained."""
