"""HTTP kit: routes declared with structs become a checked, documented aiohttp service."""

from .app import build_app
from .errors import DEFAULT_ERRORS, ErrorBody, ErrorDetail, ErrorShape, HttpError
from .probes import Plain, probe_routes
from .routes import AnyRoute, Auth, Call, Limits, Route
from .server import HttpServer, bind_listener, bound_address, wait_for_stop
from .sse import ServerEvent, send_events

__all__ = [
    "AnyRoute",
    "Auth",
    "Call",
    "DEFAULT_ERRORS",
    "ErrorBody",
    "ErrorDetail",
    "ErrorShape",
    "HttpError",
    "HttpServer",
    "Limits",
    "Plain",
    "Route",
    "ServerEvent",
    "bind_listener",
    "bound_address",
    "build_app",
    "probe_routes",
    "send_events",
    "wait_for_stop",
]
