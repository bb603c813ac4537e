"""Convert Python and JSON data to protobuf messages and back."""
