// A deliberately naive orchestrator, for Node 18 or newer: the one that everybody writes first.
//
// It works, as long as nothing goes wrong: a pid file, kill by number, a marker once the process is there, images by
// their names, and trust in whoever answers. docs/write-your-own.md shows what the harness makes of it. Copy nothing.

import { execFileSync, spawn } from 'node:child_process';
import fs from 'node:fs';
import net from 'node:net';
import path from 'node:path';
import crypto from 'node:crypto';

const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

class Failure extends Error {
  constructor(code, message) {
    super(message);
    this.code = code;
  }
}

// ---- The JSON lines. Requests are read synchronously: between two of them there is nothing else to do.

let pending = '';

function readLine() {
  const chunk = Buffer.alloc(65536);
  while (!pending.includes('\n')) {
    const count = fs.readSync(0, chunk);
    if (count === 0) return null;
    pending += chunk.toString('utf8', 0, count);
  }
  const end = pending.indexOf('\n');
  const line = pending.slice(0, end);
  pending = pending.slice(end + 1);
  return JSON.parse(line);
}

const say = (message) => fs.writeSync(1, JSON.stringify(message) + '\n');

let request = null;
let hits = {};

function step(name) {
  hits[name] = (hits[name] ?? 0) + 1;
  say({ id: request.id, step: name, hit: hits[name] });
  const isHere = (at) => at && at[0] === name && at[1] === hits[name];
  if (isHere(request.exit)) process.reallyExit(77);
  if (isHere(request.pause) && readLine()?.resume !== request.id) process.reallyExit(77);
}

// ---- NVXS and NVXC, as much as it takes: one session, one request at a time.

class Session {
  constructor(socket, capability) {
    this.socket = socket;
    this.buffer = Buffer.alloc(0);
    this.identity = Buffer.alloc(24);
    this.sequence = 0n;
    this.ended = false;
    this.wake = () => {};
    socket.on('data', (data) => { this.buffer = Buffer.concat([this.buffer, data]); this.wake(); });
    for (const event of ['end', 'error', 'close']) socket.on(event, () => { this.ended = true; this.wake(); });
    this.send(2, capability, Buffer.alloc(24), 0n);
  }

  send(type, payload, identity, sequence) {
    const head = Buffer.alloc(44);
    head.write('NVXS', 0, 'latin1');
    head.writeUInt16LE(1, 4);
    head.writeUInt8(type, 6);
    identity.copy(head, 8);
    head.writeBigUInt64LE(sequence, 32);
    head.writeUInt32LE(payload.length, 40);
    this.socket.write(Buffer.concat([head, payload]));
  }

  async record(until) {
    for (;;) {
      const length = this.buffer.length < 44 ? null : this.buffer.readUInt32LE(40);
      if (length !== null && this.buffer.length >= 44 + length) {
        const whole = this.buffer.subarray(0, 44 + length);
        this.buffer = this.buffer.subarray(44 + length);
        return { type: whole.readUInt8(6), identity: whole.subarray(8, 32), payload: whole.subarray(44) };
      }
      if (this.ended) throw new Failure('SessionFailed', 'the VM closed its session');
      const left = until - Date.now();
      if (left <= 0) throw new Failure('TimedOut', 'the VM did not answer in time');
      await Promise.race([new Promise((resolve) => { this.wake = resolve; }), pause(left)]);
    }
  }

  async ready(until) {
    for (;;) {
      const record = await this.record(until);
      if (record.type === 7) { this.identity = record.identity; return; }
    }
  }

  ask(kind, body) {
    const head = Buffer.alloc(24);
    head.write('NVXC', 0, 'latin1');
    head.writeUInt8(1, 4);
    head.writeUInt8(kind, 5);
    head.writeBigUInt64LE(this.sequence + 1n, 8);
    head.writeUInt32LE(body.length, 20);
    this.send(5, Buffer.concat([head, body]), this.identity, this.sequence);
    this.sequence += 1n;
  }

  async reply(until) {
    for (;;) {
      const { type, payload } = await this.record(until);
      if (type === 5) return { kind: payload.readUInt8(5), status: payload.readInt32LE(16), body: payload.subarray(24) };
    }
  }
}

async function attach(place, until, pid) {
  for (;;) {
    const socket = net.connect(path.join(place, 'vm.sock'));
    const connected = await new Promise((resolve) => {
      socket.once('connect', () => resolve(true));
      socket.once('error', () => resolve(false));
    });
    if (connected) {
      const session = new Session(socket, fs.readFileSync(path.join(place, 'secret')));
      await session.ready(until);
      return session;
    }
    if (pid && !runs(pid)) throw new Failure('VmmExited', 'the VM exited');
    if (Date.now() > until) throw new Failure('TimedOut', 'no VM answers');
    await pause(25);
  }
}

// ---- The operations.

const pidFile = (place) => path.join(place, 'vm.pid');
const recorded = (place) => (fs.existsSync(pidFile(place)) ? Number(fs.readFileSync(pidFile(place), 'utf8')) : null);
const waiting = new Map();

function runs(pid) {
  if (waiting.has(pid)) return waiting.get(pid);
  try { process.kill(pid, 0); return true; } catch { return false; }
}

function configuration(place) {
  if (!fs.existsSync(path.join(place, 'sandbox.json'))) throw new Failure('NotFound', `${place}: no such sandbox`);
  return JSON.parse(fs.readFileSync(path.join(place, 'sandbox.json'), 'utf8'));
}

function live(place) {
  configuration(place);
  const pid = recorded(place);
  if (pid === null || !runs(pid)) throw new Failure('VmmExited', `${place}: its VM isn't running; start it first`);
  return pid;
}

// What Node calls a pipe is a socket, and the VM monitor takes its secret from a pipe alone.
function oneWayPipe(place, data) {
  const name = path.join(place, 'fifo');
  execFileSync('mkfifo', ['-m', '600', name]);
  const reader = fs.openSync(name, fs.constants.O_RDONLY | fs.constants.O_NONBLOCK);
  const writer = fs.openSync(name, fs.constants.O_WRONLY);
  fs.writeSync(writer, data);
  fs.closeSync(writer);
  fs.rmSync(name);
  return reader;
}

function command(place, { distro, format, identity, scratch, openvmm, kernel, initrd, hypervisor }) {
  const blocks = ['--microvm-sandbox-block', `distro:file:${distro},ro`];
  if (scratch) blocks.push('--microvm-sandbox-block', `scratch:file:${scratch}`);
  const layer = `nvx_layer=distro,0xd0003000,${format}${identity ? `:${identity}` : ''}`;
  const upper = scratch ? 'nvx_scratch=0xd0006000,ext4' : 'nvx_overlay_upper=ramfs';
  return [...openvmm, '--machine', 'microvm', ...blocks, '--microvm-workload-identity', '65534:65534',
    '--microvm-lifecycle', 'managed', '--single-process', '--hypervisor', hypervisor ?? 'kvm', '--memory', '256M',
    '--kernel', kernel, '--initrd', initrd,
    '--cmdline', `nvx_sandbox=1 ${layer} ${upper} nvx_entrypoint=/bin/sh nvx_hostname=naive`,
    '--virtio-console', 'none', '--microvm-control-console', `listen=${path.join(place, 'vm.sock')}`,
    '--microvm-control-auth-stdin', '--microvm-report', path.join(place, 'report.json')];
}

const operations = {
  async provision(place, { root, name, timeout, ...wanted }) {
    if (fs.existsSync(place)) throw new Failure('AlreadyExists', `${place}: is there already`);
    fs.mkdirSync(place, { mode: 0o700 });
    fs.writeFileSync(path.join(place, 'sandbox.json'), JSON.stringify(wanted));
    step('provision.configuration');
    return {};
  },

  async start(place, _, until) {
    const wanted = configuration(place);
    const before = recorded(place);
    if (before !== null && runs(before)) throw new Failure('AlreadyExists', `${place}: its VM runs; stop it first`);
    fs.rmSync(path.join(place, 'vm.sock'), { force: true });
    const secret = crypto.randomBytes(32);
    fs.writeFileSync(path.join(place, 'secret'), secret);
    const log = fs.openSync(path.join(place, 'vm.log'), 'a');
    const input = oneWayPipe(place, secret);
    const [program, ...words] = command(place, wanted);
    const child = spawn(program, words, { detached: true, stdio: [input, log, log] });
    for (const descriptor of [log, input]) fs.closeSync(descriptor);
    waiting.set(child.pid, true);
    child.on('exit', () => waiting.set(child.pid, false));
    child.on('error', () => {});
    step('start.spawned');
    fs.writeFileSync(pidFile(place), String(child.pid));
    step('start.marker_written');
    const session = await attach(place, until, child.pid).catch((error) => {
      throw new Failure('LaunchFailed', `${place}: ${error.message}; read vm.log`);
    });
    session.socket.destroy();
    step('start.runtime_written');
    return { pid: child.pid };
  },

  async exec(place, { argv }, until) {
    live(place);
    const session = await attach(place, until);
    const head = Buffer.alloc(8);
    head.writeUInt16LE(argv.length, 4);
    const items = argv.map((word) => Buffer.from(word)).flatMap((word) => {
      const size = Buffer.alloc(4);
      size.writeUInt32LE(word.length);
      return [size, word];
    });
    session.ask(2, Buffer.concat([head, ...items]));
    const output = { 0x82: [], 0x83: [] };
    for (;;) {
      const { kind, status, body } = await session.reply(until);
      if (kind in output) { output[kind].push(body); continue; }
      session.socket.destroy();
      const [stdout, stderr] = [0x82, 0x83].map((which) => Buffer.concat(output[which]).toString('base64'));
      return { category: body.toString(), status, stdout, stderr };
    }
  },

  async stop(place, { forceWithin }, until) {
    const pid = live(place);
    process.kill(pid, 'SIGTERM');
    const enough = Math.min(until, Date.now() + 3000);
    while (runs(pid) && Date.now() < enough) await pause(25);
    const force = runs(pid) && forceWithin;
    if (force) process.kill(pid, 'SIGKILL');
    while (force && runs(pid)) await pause(25);
    if (runs(pid)) throw new Failure('TimedOut', `${place}: it still runs`);
    fs.rmSync(pidFile(place));
    fs.rmSync(path.join(place, 'vm.sock'), { force: true });
    return { outcome: force ? 'forced' : 'graceful' };
  },

  async reattach(place) {
    const found = await operations.status(place);
    if (found.verdict === 'exited') fs.rmSync(pidFile(place));
    return found;
  },

  async status(place) {
    configuration(place);
    const pid = recorded(place);
    return { verdict: pid === null ? 'stopped' : runs(pid) ? 'live' : 'exited' };
  },

  async deprovision(place) {
    if (!fs.existsSync(place)) throw new Failure('NotFound', `${place}: no such sandbox`);
    const pid = recorded(place);
    if (pid !== null && runs(pid)) throw new Failure('AlreadyExists', `${place}: its VM runs; stop it first`);
    fs.rmSync(place, { recursive: true });
    step('removal.directory');
    return {};
  },
};

const steps = ['provision.configuration', 'start.spawned', 'start.marker_written', 'start.runtime_written',
  'removal.directory'];
say({ hello: { protocol: 1, operations: Object.keys(operations), steps, needs: ['scratch', 'gpt', 'force'], ways: ['exit'] } });
while ((request = readLine()) !== null) {
  hits = {};
  const { id, op, args } = request;
  try {
    const until = Date.now() + 1000 * (args.timeout ?? 60);
    say({ id, ok: true, result: await operations[op](path.join(args.root, args.name), args, until) });
  } catch (error) {
    say({ id, ok: false, code: error.code ?? 'Unexpected', message: String(error.message) });
  }
}
process.reallyExit(0);
