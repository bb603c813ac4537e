"""Ids of vectors that are not replayed, by reason."""

NOT_COVERED = {
    "what its judge said is not on record": "AV-069".split(),
    "an agent with a workspace of its own judges": "AV-105".split(),
    "a table of Student's t: no interval of evald uses it": "AV-283 AV-290".split(),
    "the agent itself fails, before there is anything to evaluate": "AV-072".split(),
    "the Elastic License 2.0 of the source is not this one's": "FW-0490 FW-0492 FW-0493".split(),
}
