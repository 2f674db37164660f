"""The link emulator between members: delay, jitter, loss, rate, cuts; and measurements of what the links really do."""
