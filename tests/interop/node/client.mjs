// A client of standard MCP, by the TypeScript SDK. Arguments: the URL, and the file that `wait` waits for.
// Prints one JSON line for each thing that it has done.

import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";

const say = (told) => console.log(JSON.stringify(told));
const [url, gate] = process.argv.slice(2);

const client = new Client({ name: "openenv-interop", version: "1" });
const transport = new StreamableHTTPClientTransport(new URL(url));
await client.connect(transport);

const listed = await client.listTools();
say({ tools: listed.tools.map((tool) => tool.name).sort() });

async function call(name, args = {}) {
  const result = await client.callTool({ name, arguments: args });
  say({ tool: name, failed: result.isError === true, result: result.structuredContent ?? null });
}

await call("inc");
await call("inc_async");
await call("boom");
await call("wait", { path: gate });
await call("inc");
await transport.terminateSession();
await client.close();
say({ closed: true });
