# /// script
# dependencies = [
#     "aiohttp==3.14.5", "anthropic==2.9.0", "botocore==1.44.3", "grpcio==1.85.1", "httpx==0.28.1", "msgspec==0.22.0",
#     "openai==3.51.0", "requests==2.34.2", "urllib3==2.8.0",
# ]
# ///
"""Errors of clients of HTTP, gRPC and SMTP, each raised by a call to a server on this machine."""

from __future__ import annotations

import smtplib
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import aiohttp
import anthropic
import botocore.config
import botocore.session
import grpc
import httpx
import openai
import requests
import urllib3
from requests.adapters import HTTPAdapter
from tests.clients.answers import closed_port, http_server, smtp_server
from tests.clients.report import awaits, calls, write

STATUSES = (429, 503, 500, 403)
NO_RETRIES = urllib3.Retry(0, status_forcelist=STATUSES, respect_retry_after_header=False)


def requests_errors(url: str) -> None:
    for status in STATUSES:
        calls(f"requests {status}", lambda status=status: requests.get(f"{url}/{status}").raise_for_status())
    calls("requests closed", lambda: requests.get(f"{url}/close"))
    calls("requests refused", lambda: requests.get(f"http://127.0.0.1:{closed_port()}"))
    with requests.Session() as session:
        session.mount("http://", HTTPAdapter(max_retries=NO_RETRIES))
        calls("requests retries", lambda: session.get(f"{url}/429"))


def httpx_errors(url: str) -> None:
    with httpx.Client() as client:
        for status in STATUSES:
            calls(f"httpx {status}", lambda status=status: client.get(f"{url}/{status}").raise_for_status())
        calls("httpx closed", lambda: client.get(f"{url}/close"))
        calls("httpx refused", lambda: client.get(f"http://127.0.0.1:{closed_port()}"))

    def wrapped() -> None:
        try:
            httpx.get(f"{url}/429").raise_for_status()
        except httpx.HTTPStatusError as error:
            raise LookupError("no price") from error

    calls("httpx wrapped", wrapped)


def urllib_errors(url: str) -> None:
    for status in STATUSES:
        calls(f"urllib {status}", lambda status=status: urllib.request.urlopen(f"{url}/{status}"))
    calls("urllib refused", lambda: urllib.request.urlopen(f"http://127.0.0.1:{closed_port()}"))
    with urllib3.PoolManager(retries=NO_RETRIES) as pool:
        for status in STATUSES:
            calls(f"urllib3 {status}", lambda status=status: pool.request("GET", f"{url}/{status}"))
        calls("urllib3 closed", lambda: pool.request("GET", f"{url}/close"))
        calls("urllib3 refused", lambda: pool.request("GET", f"http://127.0.0.1:{closed_port()}"))


def aiohttp_errors(url: str) -> None:
    async def get(path: str) -> None:
        async with aiohttp.ClientSession(raise_for_status=True) as session, session.get(path):
            pass

    for status in STATUSES:
        awaits(f"aiohttp {status}", lambda status=status: get(f"{url}/{status}"))
    awaits("aiohttp closed", lambda: get(f"{url}/close"))
    awaits("aiohttp refused", lambda: get(f"http://127.0.0.1:{closed_port()}"))


def botocore_errors(url: str) -> None:
    session = botocore.session.Session()
    config = botocore.config.Config(retries={"total_max_attempts": 1})
    keys = {"region_name": "eu-west-1", "aws_access_key_id": "a", "aws_secret_access_key": "b", "config": config}

    def list_tables(path: str) -> None:
        session.create_client("dynamodb", endpoint_url=path, **keys).list_tables()

    for answer in ("400/ThrottlingException", "429/SlowDown", "503/Unheard", "500/Unheard", "403/AccessDenied"):
        calls(f"botocore {answer}", lambda answer=answer: list_tables(f"{url}/{answer}"))
    calls("botocore closed", lambda: list_tables(f"{url}/close"))
    calls("botocore refused", lambda: list_tables(f"http://127.0.0.1:{closed_port()}"))


def model_errors(url: str) -> None:
    """Errors of clients of models."""

    def chat(path: str) -> None:
        with openai.OpenAI(api_key="k", base_url=path, max_retries=0) as client:
            client.models.list()

    def message(path: str) -> None:
        with anthropic.Anthropic(api_key="k", base_url=path, max_retries=0) as client:
            client.models.list()

    for answer in ("429/rate_limit_exceeded", "429/insufficient_quota", "503/x", "500/x", "403/x"):
        calls(f"openai {answer}", lambda answer=answer: chat(f"{url}/{answer}"))
    for answer in ("429/rate_limit_error", "529/overloaded_error", "501/x", "503/x", "500/x", "403/x"):
        calls(f"anthropic {answer}", lambda answer=answer: message(f"{url}/{answer}"))
    for name, call in (("openai", chat), ("anthropic", message)):
        calls(f"{name} closed", lambda call=call: call(f"{url}/close"))
        calls(f"{name} refused", lambda call=call: call(f"http://127.0.0.1:{closed_port()}"))


def grpc_errors() -> None:
    def refuse(request: bytes, context: Any) -> bytes:
        code, _, metadata = request.decode().partition(" ")
        if code == "WAIT":  # until the client has given up
            given_up = Event()
            context.add_callback(given_up.set)
            given_up.wait()
        if metadata:
            context.set_trailing_metadata((tuple(metadata.split("=")),))
        context.abort(grpc.StatusCode[code], "no")
        raise AssertionError

    server = grpc.server(ThreadPoolExecutor(2))
    method = grpc.unary_unary_rpc_method_handler(refuse)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test", {"Call": method}),))
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()

    def call(text: str, at: str = address, timeout: float = 30) -> None:
        with grpc.insecure_channel(at) as channel:
            channel.unary_unary("/test/Call")(text.encode(), timeout=timeout)

    async def call_async(text: str) -> None:
        async with grpc.aio.insecure_channel(address) as channel:
            await channel.unary_unary("/test/Call")(text.encode())

    for text in (
        *("UNAVAILABLE", "UNAVAILABLE retry-after=7", "RESOURCE_EXHAUSTED grpc-retry-pushback-ms=250"),
        *("PERMISSION_DENIED", "INVALID_ARGUMENT", "NOT_FOUND", "INTERNAL"),
    ):
        calls(f"grpc {text}", lambda text=text: call(text))
    calls("grpc too late", lambda: call("WAIT", timeout=0.05))
    calls("grpc refused", lambda: call("INTERNAL", f"127.0.0.1:{closed_port()}"))
    awaits("grpc.aio", lambda: call_async("UNAVAILABLE retry-after=7"))
    server.stop(0).wait()


def smtp_errors() -> None:
    def send(*recipients: str, password: str = "", **table: str) -> None:
        with smtp_server(**table) as port, smtplib.SMTP("127.0.0.1", port, timeout=30) as client:
            if password:
                client.login("ann", password)
            client.sendmail("ann@example.com", recipients, "Subject: hello\r\n\r\nhello")

    calls("smtplib busy", lambda: send("ben@example.com", CONNECT="421 too many connections"))
    calls("smtplib login", lambda: send("ben@example.com", password="x", AUTH="535 no"))
    calls("smtplib later", lambda: send("ben@example.com", RCPT_ben="450 greylisted"))
    calls("smtplib unknown", lambda: send("ben@example.com", RCPT_ben="550 no such user"))
    calls("smtplib some later", lambda: send("ben@x", "eve@x", RCPT_ben="450 later", RCPT_eve="550 no"))
    calls("smtplib full", lambda: send("ben@example.com", END="452 no space"))
    calls("smtplib spam", lambda: send("ben@example.com", END="554 rejected"))
    calls("smtplib closed", lambda: send("ben@example.com", MAIL="close"))
    calls("smtplib refused", lambda: smtplib.SMTP("127.0.0.1", closed_port()))


if __name__ == "__main__":
    with http_server() as url:
        for errors in (requests_errors, httpx_errors, urllib_errors, aiohttp_errors, botocore_errors, model_errors):
            errors(url)
    grpc_errors()
    smtp_errors()
    write()
