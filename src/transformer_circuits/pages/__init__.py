"""Pages that are made, not written: the build runs these modules."""


def raw(markup: str) -> str:
    """HTML inside of MyST, handed through as it is."""
    return f"```{{raw}} html\n{markup}\n```\n"
