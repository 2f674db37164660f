"""The rights on nodes, beside a Role, as commands to paste."""

from walproof.machine.quoting import pasted


def optional(account: str, namespace: str) -> tuple[str, ...]:
    """By a ClusterRole beside the Role: whether sizes fit is known by nodes and the pods of all namespaces alone."""
    name, binding = "walproof-nodes", f"{account}.nodes.{namespace}"
    return (
        "Optional: by this it is known beforehand whether sizes fit on the nodes; it lists the pods of all namespaces.",
        pasted("kubectl create clusterrole {name:shell} --verb list --resource nodes,pods", name=name),
        pasted(
            "kubectl create clusterrolebinding {binding:shell} --clusterrole {name:shell} "
            "--serviceaccount {account:shell}",
            binding=binding,
            name=name,
            account=f"{namespace}:{account}",
        ),
    )
