"""CloudNativePG on the stand-in by hand, beside `walproof guard`, or behind a real kube-apiserver."""
