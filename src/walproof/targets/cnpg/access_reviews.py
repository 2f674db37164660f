"""What the API answers when a user asks for their own rights (authorization.k8s.io)."""

from walproof.targets.cnpg.objects import Read


class ResourceRule(Read):
    """As a SelfSubjectRulesReview states it; "*" stands for all, no names for every name."""

    verbs: list[str] = []
    api_groups: list[str] = []
    resources: list[str] = []
    resource_names: list[str] = []


class Reviewed(Read):
    """What a review of this user's own rights says."""

    allowed: bool = False
    resource_rules: list[ResourceRule] = []


class Review(Read):
    """Of a SelfSubjectAccessReview or a SelfSubjectRulesReview."""

    status: Reviewed = Reviewed()
