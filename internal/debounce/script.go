package debounce

import "github.com/redis/go-redis/v9"

// The scripts share their keys: due (sorted by when a burst is over), running (sorted by when its sweeper's lease ends),
// bursts (hash: generation and first event of each) and generation (the last one given out). A burst's generation is that
// of its last event, and no two events have the same, so that who says late that a burst fired says nothing of the next one.
var (
	// luaArm: ARGV key, quiet, max, most keys, life of all. Gives the ms until the burst is over, or -1 when there are too
	// many. The time is read once: both ends of the burst hang on it.
	luaArm = redis.NewScript(`
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local first = now
if redis.call('ZSCORE', KEYS[1], ARGV[1]) then
  local burst = redis.call('HGET', KEYS[3], ARGV[1])
  if burst then first = tonumber(string.match(burst, ':(%d+)$')) end
elseif redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[4]) then
  return -1
end
local due = math.min(now + ARGV[2], first + ARGV[3])
redis.call('ZADD', KEYS[1], due, ARGV[1])
redis.call('HSET', KEYS[3], ARGV[1], string.format('%d:%d', redis.call('INCR', KEYS[4]), first))
for _, key in ipairs(KEYS) do redis.call('PEXPIRE', key, ARGV[5]) end
return math.max(due - now, 0)`)

	// luaSweep: ARGV lease, most, life of all. Gives the ms until there may be more, -1 for none, then key, generation and 1 (somebody
	// had it before) or 0 of each.
	luaSweep = redis.NewScript(`
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local most, out = tonumber(ARGV[2]), {-1}
local function take(from, again)
  local keys = redis.call('ZRANGEBYSCORE', from, '-inf', now, 'LIMIT', 0, most)
  most = most - #keys
  for _, key in ipairs(keys) do
    local burst = redis.call('HGET', KEYS[3], key) or '0:0'
    if again == 0 then redis.call('ZREM', from, key) end
    redis.call('ZADD', KEYS[2], now + ARGV[1], key)
    table.insert(out, key)
    table.insert(out, string.match(burst, '^%d+'))
    table.insert(out, again)
  end
end
take(KEYS[2], 1)
if most > 0 then take(KEYS[1], 0) end
if #out > 1 then redis.call('PEXPIRE', KEYS[2], ARGV[3]) end
for i = 1, 2 do
  local first = redis.call('ZRANGE', KEYS[i], 0, 0, 'WITHSCORES')
  if first[2] then
    local wait = math.max(first[2] - now, 0)
    if out[1] < 0 or wait < out[1] then out[1] = wait end
  end
end
return out`)

	// luaAck: ARGV key and generation of each. A burst whose generation is another had an event since: if it is armed it
	// stays armed, else another sweeper has it.
	luaAck = redis.NewScript(`
for i = 1, #ARGV, 2 do
  local burst = redis.call('HGET', KEYS[3], ARGV[i]) or '0:0'
  local armed = redis.call('ZSCORE', KEYS[1], ARGV[i])
  local same = string.match(burst, '^%d+') == ARGV[i + 1]
  if armed or same then redis.call('ZREM', KEYS[2], ARGV[i]) end
  if same and not armed then redis.call('HDEL', KEYS[3], ARGV[i]) end
end
return 1`)
)
