// A trace file as another reader sees it: Chrome DevTools' trace engine, an independent parser of Chrome's JSON.
//
//     npm install --prefix /tmp/reader @paulirish/trace_engine
//     node scripts/check_trace.mjs T.json /tmp/reader/node_modules/@paulirish/trace_engine
//
// Prints each lane with its name, events and nesting depth; exits 1 where an event is lost, lanes overlap (a depth above 1) or durations
// do not add up to those of the file.  T.json is not compressed.
import fs from "node:fs";
import path from "node:path";
import { pathToFileURL } from "node:url";

const [file, engine] = process.argv.slice(2);
if (!file || !engine) throw new Error("usage: node check_trace.mjs T.json FOLDER-OF-trace_engine");
const { Processor } = await import(pathToFileURL(path.resolve(engine, "models/trace/trace.js")));
const events = JSON.parse(fs.readFileSync(file, "utf8")).traceEvents;
const processor = Processor.TraceProcessor.createWithAllHandlers();
await processor.parse(events, { isFreshRecording: false, isCPUProfile: false, metadata: {} });

const written = events.filter((event) => event.ph === "X");
const duration = (some) => some.reduce((sum, event) => sum + (event.dur ?? 0), 0);
let count = 0, total = 0, depth = 0;
for (const [pid, { threads }] of (processor.parsedTrace ?? processor.data).Renderer.processes) {
  for (const [tid, lane] of threads) {
    console.log(`${pid}/${tid} ${lane.name}: ${lane.entries.length} events, depth ${lane.tree?.maxDepth ?? 0}`);
    count += lane.entries.length;
    total += duration(lane.entries);
    depth = Math.max(depth, lane.tree?.maxDepth ?? 0);
  }
}
console.log(`${count} of ${written.length} events read, ${total.toFixed(3)} of ${duration(written).toFixed(3)} us, depth ${depth}`);
if (count !== written.length || Math.abs(total - duration(written)) > 1e-3 || depth > 1) process.exit(1);
