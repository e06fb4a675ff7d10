"""`gantry user`: the people who log in to the console."""

import sys
from enum import StrEnum
from typing import Annotated

import typer

from gantry.cli.formatting import print_facts, print_items, print_json
from gantry.cli.options import DATA_DEFAULT, DataOption, JsonOption, KeyOption, UrlOption
from gantry.cli.remote import connect, segment

app = typer.Typer(name="user", help="Manage users of the console.", no_args_is_help=True)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The name of the user, in lower case.")]
StdinOption = Annotated[
    bool, typer.Option("--password-stdin", help="Read the password from standard input instead of asking for it.")
]


class Role(StrEnum):
    """Roles that a user may have."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"


RoleOption = Annotated[
    Role,
    typer.Option(
        help="viewer: reads everything but keys and users. operator: also changes topics, groups, offsets and messages."
        " admin: may do everything."
    ),
]


@app.command("list")
def list_users(
    *, data: DataOption = DATA_DEFAULT, url: UrlOption = None, key: KeyOption = None, as_json: JsonOption = False
) -> None:
    """List users with their roles."""
    items = list(connect(data, url, key).items("/v1/users"))
    columns = ["user", "role", "disabled", "created_at", "password_changed_at"]
    print_items(
        items,
        columns,
        row=lambda item: [item[column] for column in columns],
        empty="there are no users",
        as_json=as_json,
    )


@app.command()
def create(
    name: NameArgument,
    *,
    role: RoleOption,
    password_stdin: StdinOption = False,
    data: DataOption = DATA_DEFAULT,
    url: UrlOption = None,
    key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create a user. The command asks for the password, which has at least 10 characters."""
    body = {"role": role.value, "password": _new_password(password_stdin)}
    # Without this check, the command would change a user who exists already.
    made = connect(data, url, key).call("PUT", f"/v1/users/{segment(name)}", body=body, headers={"If-None-Match": "*"})
    if as_json:
        print_json(made)
        return
    print_facts({"user": made["user"], "role": made["role"]})


@app.command()
def change(
    name: NameArgument,
    *,
    role: Annotated[Role | None, typer.Option(help="The new role.")] = None,
    disable: Annotated[bool | None, typer.Option("--disable/--enable", help="Whether the user can log in.")] = None,
    data: DataOption = DATA_DEFAULT,
    url: UrlOption = None,
    key: KeyOption = None,
) -> None:
    """Change the role of a user, or disable or enable one. This ends the sessions of the user."""
    body: dict[str, object] = {}
    if role is not None:
        body["role"] = role.value
    if disable is not None:
        body["disabled"] = disable
    if not body:
        raise typer.BadParameter("nothing to change: give --role, --disable or --enable")
    changed = connect(data, url, key).call("PUT", f"/v1/users/{segment(name)}", body=body, headers={"If-Match": "*"})
    state = "can't log in" if changed["disabled"] else "can log in"
    print(f"{changed['user']} has the role {changed['role']} and {state}")


@app.command()
def password(
    name: NameArgument,
    *,
    password_stdin: StdinOption = False,
    data: DataOption = DATA_DEFAULT,
    url: UrlOption = None,
    key: KeyOption = None,
) -> None:
    """Set a new password for a user. This ends the sessions of the user."""
    body = {"password": _new_password(password_stdin)}
    connect(data, url, key).call("PUT", f"/v1/users/{segment(name)}", body=body, headers={"If-Match": "*"})
    print(f"the password of {name} is changed")


@app.command()
def delete(
    name: NameArgument, *, data: DataOption = DATA_DEFAULT, url: UrlOption = None, key: KeyOption = None
) -> None:
    """Delete a user with all sessions."""
    connect(data, url, key).call("DELETE", f"/v1/users/{segment(name)}")
    print(f"user {name} is deleted")


@app.command()
def sessions(
    name: NameArgument,
    *,
    end: Annotated[bool, typer.Option("--end", help="End all sessions of the user.")] = False,
    end_one: Annotated[
        str | None, typer.Option("--end-one", metavar="SESSION", help="End the session with this id.")
    ] = None,
    data: DataOption = DATA_DEFAULT,
    url: UrlOption = None,
    key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the sessions of a user, or end them. Other gateways reject an ended session within 30 s."""
    if end and end_one is not None:
        raise typer.BadParameter("give either --end or --end-one")
    gateway, path = connect(data, url, key), f"/v1/users/{segment(name)}/sessions"
    if end_one is not None:
        gateway.call("DELETE", f"{path}/{segment(end_one)}")
        print(f"session {end_one} of {name} has ended")
        return
    if end:
        gateway.call("DELETE", path)
        print(f"the sessions of {name} have ended")
        return
    columns = ["session", "created_at", "last_seen_at", "expires_at", "address", "user_agent"]
    print_items(
        list(gateway.items(path)),
        columns,
        row=lambda item: [item[column] for column in columns],
        empty=f"{name} has no sessions",
        as_json=as_json,
    )


def _new_password(from_stdin: bool) -> str:
    if from_stdin:
        return sys.stdin.readline().rstrip("\r\n")
    chosen: str = typer.prompt("New password", hide_input=True, confirmation_prompt=True)
    return chosen
