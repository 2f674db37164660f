"""`walproof target`: what a kind of target needs before it can be used."""

import cloup

from walproof.cli import options as opt
from walproof.cli.options import Command, Group
from walproof.errors import ExitCode, UsageError
from walproof.model.units import listed
from walproof.reporting.console_output import print_result
from walproof.targets.choose import rights_of

USES = ["doctor", "price", "prove", "apply"]


@cloup.group(cls=Group)
def target() -> None:
    """What a kind of target needs before it can be used."""


@target.command(cls=Command)
@opt.option("--target address", "WHERE", "The cluster: cnpg:NAMESPACE/NAME, or a target file.", callback=opt.addressed)
@opt.kube_context
@opt.flag("--print-rbac printed", "Print an account and the least Role that it needs.")
@opt.words("--for uses", "USE,…", f"{', '.join(USES)}; load-pods, scale, chaos-mesh, guard.  [default: the first four]")
@opt.dry_run
@opt.json_output
def cnpg(address: str | None, printed: bool, uses: str | None, dry_run: bool, as_json: bool) -> ExitCode:
    """Rights that CloudNativePG needs: the account and Role to paste, and what of it is missing. Changes nothing."""
    if not printed and not dry_run:
        raise UsageError("give --print-rbac or --dry-run", "the first prints the Role, the second what is missing")
    rights, wanted = rights_of("cnpg", address), tuple(dict.fromkeys(listed(uses or ",".join(USES), "for")))
    if not dry_run:
        text = rights.role(wanted)
        print_result({"role": text}, *text.rstrip().split("\n"), as_json=as_json)
        return ExitCode.HELD
    missing = {use: list(rights.missing([use])) for use in wanted}
    role = rights.role_of_missing(wanted) if any(missing.values()) else ""
    lines = [f"{use}: {'missing: ' + ', '.join(lacks) if lacks else 'allowed'}" for use, lacks in missing.items()]
    print_result(
        {"missing": missing, "role": role}, *lines, *(role.rstrip().split("\n") if role else ()), as_json=as_json
    )
    return ExitCode.ENVIRONMENT if role else ExitCode.HELD
