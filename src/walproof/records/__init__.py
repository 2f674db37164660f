"""The record directory: written as it happens, read as far as it goes, and a journal of settings to put back."""
