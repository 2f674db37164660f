"""How long CloudNativePG took to replace a primary, where nothing was drilled: of a real cluster, version 1.30 on
Kubernetes 1.34 with default settings (docs/kubernetes.md, "Where the time goes"). Seconds.
"""

MANAGER = "cloudnative-pg"
"""What a target's description calls it."""
KILLED_S = 10.0
"""Its postmaster was killed."""
DELETED_S = 25.0
"""Its pod was deleted."""
CUT_S = 121.0
"""Its network was cut, at worst: 85 to 121."""
