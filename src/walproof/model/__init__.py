"""The words of the field as frozen dataclasses; imports nothing but errors."""
