"""`walproof lab`: the group of commands for the lab; each is imported when it is called."""

import cloup

from walproof.cli.options import Group, section

SECTIONS = (
    section(
        "Cluster",
        "walproof.cli.lab_cluster",
        up="Create the lab and wait until its standbys are streaming and synchronous.",
        status="Members, roles, timelines, lag, standby names in effect.",
        down="Remove a lab, complete or not, or --all; nothing of it stays.",
        ls="The labs there are, and what killed commands left behind.",
    ),
    section(
        "Machine",
        "walproof.cli.lab_cluster",
        doctor="What this machine offers a lab, what is missing, and what to do.",
    ),
    section(
        "Members",
        "walproof.cli.lab_cluster",
        psql="psql on the leader or a member.",
        logs="The last lines of a member's logs.",
        restart="Restart PostgreSQL of a member through Patroni.",
        switchover="A planned switchover.",
        cpu="Limit the processors of members.",
    ),
    section(
        "Links and faults",
        "walproof.cli.lab_links_and_faults",
        link="Show or set round trip, loss and rate between members.",
        fault="Inject faults, list them, clear them.",
    ),
)


@cloup.group(cls=Group, sections=SECTIONS)
def lab() -> None:
    """A real cluster on this machine: PostgreSQL, Patroni and etcd in one network namespace per member, and HAProxy
    and PgBouncer in front of them.
    """
