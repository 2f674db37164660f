"""The record directory: written as it happens, read as far as it goes; and the journal of changed settings."""
