"""A small OpenID Connect issuer on loopback: description, keys, sign-in without a form, and an exchange that checks everything."""

import base64
import hashlib
import json
import secrets
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlencode, urlsplit

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

CLIENT, SECRET = "shoal:test", "a secret/with+signs"


def b64(data):
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def number(value, size=None):
    return b64(value.to_bytes(size or (value.bit_length() + 7) // 8))


class RsaKey:
    def __init__(self, kid, bits=2048):
        self.kid, self.key = kid, rsa.generate_private_key(65537, bits)

    def public(self):
        numbers = self.key.public_key().public_numbers()
        return {"kty": "RSA", "kid": self.kid, "use": "sig", "n": number(numbers.n), "e": number(numbers.e)}

    def sign(self, signed, alg="RS256"):
        return self.key.sign(signed, padding.PKCS1v15(), hashes.SHA256())


class EcKey:
    def __init__(self, kid):
        self.kid, self.key = kid, ec.generate_private_key(ec.SECP256R1())

    def public(self):
        numbers = self.key.public_key().public_numbers()
        return {"kty": "EC", "crv": "P-256", "kid": self.kid, "x": number(numbers.x, 32), "y": number(numbers.y, 32)}

    def sign(self, signed):
        r, s = decode_dss_signature(self.key.sign(signed, ec.ECDSA(hashes.SHA256())))
        return r.to_bytes(32) + s.to_bytes(32)


def jwt(key, claims, alg="RS256", **header):
    signed = f"{b64(json.dumps({'alg': alg, 'kid': key.kid} | header).encode())}.{b64(json.dumps(claims).encode())}"
    return f"{signed}.{b64(key.sign(signed.encode()))}"


class Issuer(ThreadingHTTPServer):
    """`who` holds the claims of the person who is signed in there; `change` can change those of the next token."""

    daemon_threads = True

    def __init__(self, key):
        super().__init__(("127.0.0.1", 0), _Talk)
        self.key, self.who, self.codes, self.change, self.fetched = key, {}, {}, {}, []
        self.refuses = False

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"

    def sign_in(self, **who):
        self.who = {"sub": who.pop("sub", who.get("email", "x")), "email_verified": True} | who


class _Talk(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        issuer, path = self.server, urlsplit(self.path)
        issuer.fetched.append(path.path)
        if path.path == "/.well-known/openid-configuration":
            self.say(200, {"issuer": issuer.url, "authorization_endpoint": f"{issuer.url}/authorize",
                           "token_endpoint": f"{issuer.url}/token", "jwks_uri": f"{issuer.url}/keys"})  # fmt: skip
        elif path.path == "/keys":
            self.say(200, {"keys": [issuer.key.public()]})
        elif path.path == "/authorize":
            self.authorize({name: values[0] for name, values in parse_qs(path.query).items()})
        else:
            self.say(404, {})

    def authorize(self, asked):
        assert asked["client_id"] == CLIENT and asked["response_type"] == "code"
        assert "openid" in asked["scope"].split() and asked["code_challenge_method"] == "S256"
        answer = {"state": asked["state"]}
        if self.server.refuses:
            answer["error"] = "access_denied"
        else:
            answer["code"] = secrets.token_hex(8)
            self.server.codes[answer["code"]] = asked
        self.send_response(302)
        self.send_header("Location", f"{asked['redirect_uri']}?{urlencode(answer)}")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_POST(self):
        form = {n: v[0] for n, v in parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode()).items()}
        scheme, _, credentials = self.headers.get("Authorization", "").partition(" ")
        right = base64.b64encode(urlencode({CLIENT: SECRET}).replace("=", ":").encode()).decode()
        if (scheme, credentials) != ("Basic", right):
            self.say(401, {"error": "invalid_client"})
            return
        asked = self.server.codes.pop(form["code"], None)
        challenge = b64(hashlib.sha256(form["code_verifier"].encode()).digest())
        if asked is None or challenge != asked["code_challenge"] or form["redirect_uri"] != asked["redirect_uri"]:
            self.say(400, {"error": "invalid_grant"})
            return
        now = int(time.time())
        claims = {"iss": self.server.url, "aud": CLIENT, "nonce": asked["nonce"], "iat": now, "exp": now + 300}
        self.say(200, {"id_token": jwt(self.server.key, claims | self.server.who | self.server.change)})

    def say(self, status, answer):
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def started(key):
    issuer = Issuer(key)
    threading.Thread(target=issuer.serve_forever, args=(0.01,), daemon=True).start()
    return issuer
