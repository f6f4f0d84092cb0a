// Runs the importer of Perfetto's viewer, a worker of the web with a program in WebAssembly, and prints the result of
// queries: an array of rows a line, in JSON.
//
// Arguments: the viewer's folder, which has `engine_bundle.js`, a trace, and queries.
'use strict';
const fs = require('fs');
const path = require('path');
const vm = require('vm');

const [folder, trace, ...queries] = process.argv.slice(2);
/** Bytes of the trace in a request. */
const AT_ONCE = 8 << 20;
/** Numbers of the importer's requests, and of the fields of requests and answers: `trace_processor.proto`. */
const REQUEST = {append: 1, finalize: 2, query: 3};
const FIELD = {message: 1, number: 1, request: 2, data: 101, query: 103, appended: 201, finalized: 202, result: 203, fatal: 5};

// What a worker finds: files come from the folder, and messages go by a port.
globalThis.self = globalThis;
globalThis.WorkerGlobalScope = function () {};
globalThis.importScripts = () => {};
globalThis.location = {href: 'http://localhost/engine_bundle.js', pathname: '/engine_bundle.js', search: '', protocol: 'http:'};
const file = (url) => fs.readFileSync(path.join(folder, path.basename(String(url).split('?')[0])));
globalThis.fetch = async (url) => new Response(file(url), {headers: {'content-type': 'application/wasm'}});
globalThis.XMLHttpRequest = class {
  open(_, url) { this.url = url; }
  send() { this.response = file(this.url).buffer; this.status = 200; this.onload?.(); }
};
console.warn = () => {};

// The program can be called some tasks after its last instance was made, and tells nobody.
let started = null;
const {Instance} = WebAssembly;
WebAssembly.Instance = function (...of) {
  clearTimeout(started);
  started = setTimeout(() => { started = true; wake(); }, 100);
  return new Instance(...of);
};

const answers = [];
let wake = () => {};
const port = {
  postMessage(data) { answers.push(Buffer.from(data)); wake(); },
  set onmessage(receive) { this.receive = receive; wake(); },
  start() {}, addEventListener() {},
};
const changed = () => new Promise((resolve) => { wake = resolve; setTimeout(resolve, 50); });

// Protobuf's wire format.
function varint(value) {
  const bytes = [];
  for (let left = BigInt(value); ; left >>= 7n) {
    if (left < 128n) return Buffer.from([...bytes, Number(left)]);
    bytes.push(Number(left & 127n) | 128);
  }
}
const number = (field, value) => Buffer.concat([varint(field << 3), varint(value)]);
const bytes = (field, value) => Buffer.concat([varint(field << 3 | 2), varint(value.length), value]);
function read(buffer, at) {
  for (let value = 0n, shift = 0n; at < buffer.length; shift += 7n) {
    const byte = buffer[at++];
    value |= BigInt(byte & 127) << shift;
    if (byte < 128) return [value, at];
  }
  return [null, at];
}
function* fields(buffer) {
  for (let at = 0, tag, value; at < buffer.length;) {
    [tag, at] = read(buffer, at);
    const kind = Number(tag & 7n);
    if (kind === 0) {
      [value, at] = read(buffer, at);
    } else {
      let length = BigInt({1: 8, 5: 4}[kind] ?? 0);
      if (kind === 2) [length, at] = read(buffer, at);
      value = buffer.subarray(at, at += Number(length));
    }
    yield [Number(tag >> 3n), value];
  }
}
function packed(buffer) {
  const values = [];
  for (let at = 0, value; at < buffer.length;) {
    [value, at] = read(buffer, at);
    values.push(value);
  }
  return values;
}

let rest = Buffer.alloc(0);
/** Returns the next answer: each has its length in front. */
async function answer() {
  for (;;) {
    rest = Buffer.concat([rest, ...answers.splice(0)]);
    const [length, begin] = rest.length > 1 ? read(rest, 1) : [null];
    if (length !== null && rest.length >= begin + Number(length)) {
      const message = rest.subarray(begin, begin + Number(length));
      rest = rest.subarray(begin + Number(length));
      for (const [field, value] of fields(message)) if (field === FIELD.fatal) throw new Error(String(value));
      return message;
    }
    await changed();
  }
}
let sent = 0;
async function send(request, data = Buffer.alloc(0)) {
  const message = Buffer.concat([number(FIELD.number, sent++), number(FIELD.request, request), data]);
  await port.receive({data: new Uint8Array(bytes(FIELD.message, message))});
}
/** Fails with the error of an answer. Its field has this number in the answers. */
function check(message, answered, error) {
  for (const [field, value] of fields(message)) {
    if (field !== answered) continue;
    for (const [part, text] of fields(value)) if (part === error && Buffer.isBuffer(text)) throw new Error(String(text));
  }
}

/** Returns the rows of a query's result, whose cells come by type in batches. */
async function rows(query) {
  await send(REQUEST.query, bytes(FIELD.query, bytes(1, Buffer.from(query))));
  const [columns, cells] = [[], []];
  for (let isLast = false; !isLast;) {
    for (const [field, result] of fields(await answer())) {
      if (field !== FIELD.result) continue;
      for (const [part, value] of fields(result)) {
        if (part === 1) columns.push(String(value));
        if (part === 2 && value.length) throw new Error(`${query}: ${value}`);
        if (part !== 3) continue;
        const [types, integers, floats, texts] = [[], [], [], []];
        for (const [of, data] of fields(value)) {
          if (of === 1) types.push(...packed(data));
          if (of === 2) integers.push(...(typeof data === 'bigint' ? [data] : packed(data)));
          if (of === 3) for (let at = 0; at < data.length; at += 8) floats.push(data.readDoubleLE(at));
          if (of === 5) texts.push(...String(data).split('\0'));
          if (of === 6) isLast = data !== 0n;
        }
        const integer = () => {
          const value = BigInt.asIntN(64, integers.shift());
          return Number.isSafeInteger(Number(value)) ? Number(value) : String(value);
        };
        const read = [, () => null, integer, () => floats.shift(), () => texts.shift()];
        for (const type of types) cells.push(read[Number(type)]());
      }
    }
  }
  const all = [];
  for (let at = 0; columns.length && at < cells.length; at += columns.length) {
    all.push(Object.fromEntries(columns.map((name, column) => [name, cells[at + column]])));
  }
  return all;
}

async function main() {
  const own = process;
  // The worker takes itself for a program of node if it finds this.
  globalThis.process = undefined;
  vm.runInThisContext(fs.readFileSync(path.join(folder, 'engine_bundle.js'), 'utf8'));
  globalThis.process = own;
  globalThis.onmessage({data: port});
  while (!port.receive || started !== true) await changed();
  const data = fs.readFileSync(trace);
  for (let at = 0; at < data.length; at += AT_ONCE) {
    await send(REQUEST.append, bytes(FIELD.data, data.subarray(at, at + AT_ONCE)));
    check(await answer(), FIELD.appended, 2);
  }
  await send(REQUEST.finalize);
  check(await answer(), FIELD.finalized, 1);
  for (const query of queries) fs.writeSync(1, JSON.stringify(await rows(query)) + '\n');
  own.exit(0);
}
main().catch((error) => { fs.writeSync(2, `${error.stack}\n`); process.exit(1); });
