"""Cases that are not replayed, and why: the ids by reason."""

NOT_COVERED = {
    "what its judge said is not on record": "AV-069".split(),
    "an agent with a workspace of its own judges": "AV-105".split(),
    "every turn of a driven conversation has assertions of its own": "AV-030 AV-031 AV-034 AV-040".split(),
    "JavaScript judges, inside the server": "AV-170 AV-172 AV-182".split(),
    "a table of Student's t: no interval of evald uses it": "AV-283 AV-290".split(),
    "a context knows no skills of a coding agent": "AV-195 AV-200 AV-201 AV-202 AV-204 AV-205".split(),
    "the agent itself fails, before there is anything to evaluate": "AV-072".split(),
    "the Elastic License 2.0 of the source is not this one's": "FW-0490 FW-0492 FW-0493".split(),
}
