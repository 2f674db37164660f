"""One file per program of the lab: settings to config text, argv, readiness question."""
