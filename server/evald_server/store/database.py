"""The database."""


class StoreProblem(Exception):
    """The store cannot do what was asked. code: "STORAGE_FULL" or "STORAGE_UNAVAILABLE"."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
