"""Fast, safe takeover: suspect, seal, check, release. Decisions are pure; run.py acts."""
