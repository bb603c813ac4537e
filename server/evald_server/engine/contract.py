"""What a result must hold to, whoever made it: the SDK's rules, which workers keep as well."""

from evald.contract import MAX_CHECKS, MAX_METADATA_ITEMS, MAX_REASON_BYTES, cut, violation

__all__ = ["MAX_CHECKS", "MAX_METADATA_ITEMS", "MAX_REASON_BYTES", "cut", "violation"]
