"""The subcommands of `tsn`; nothing heavy is imported before one of them runs."""
