// Calls of the API.

/** Returns the answer's JSON; throws an Error with the server's message, its status and its hint. */
export async function call(method, path, body) {
  const answer = await fetch(path, {
    method,
    headers: { Accept: "application/json", ...(body ? { "Content-Type": "application/json" } : {}) },
    body: body ? JSON.stringify(body) : undefined,
  });
  const text = await answer.text(),
    json = text ? JSON.parse(text) : {};
  if (!answer.ok)
    throw Object.assign(new Error(json.error?.message ?? `The server answered ${answer.status}.`), {
      status: answer.status,
      hint: json.error?.hint,
    });
  return json;
}
