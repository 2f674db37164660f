"""Price against proof: recommendation, and the text to apply."""
