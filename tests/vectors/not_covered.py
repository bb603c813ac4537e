"""Cases that are not replayed, and why: the ids by reason."""

NOT_COVERED = {
    "what its judge said is not on record": "AV-069".split(),
    "an agent with a workspace of its own judges": "AV-105".split(),
    "statistics over repeated trials": """
        AV-275 AV-277 AV-279 AV-280 AV-283 AV-285 AV-290 FW-0124 FW-0134 FW-0136 FW-0137 FW-0140 FW-0141
        FW-0496 FW-0497 FW-0515 FW-0516 FW-0517 FW-0518
    """.split(),
    "the agent itself fails, before there is anything to evaluate": "AV-072".split(),
    "the Elastic License 2.0 of the source is not this one's": "FW-0490 FW-0492 FW-0493".split(),
}
