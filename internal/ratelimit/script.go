package ratelimit

import (
	"context"

	"github.com/redis/go-redis/v9"
)

// The scripts run on Redis 5 and later and on Valkey. All keys of one bucket carry one hash tag. Time is Redis's own, in
// whole microseconds; what is stored is whole numbers. Limits come with each call, so a change takes effect with the next.

// luaMeter is meter.go in Lua: the same arithmetic on the same doubles.
const luaMeter = `
local PART = 1000000
local function now()
  local t = redis.call('TIME')
  return tonumber(t[1]) * 1000000 + tonumber(t[2])
end
local function whole(x) return string.format('%.0f', x) end
local function split(rate, burst, share)
  burst = math.max(burst, 1)
  local frate, fburst = rate * share, 0
  if frate < 0.000001 then
    frate = 0
  else
    fburst = math.min(math.max(burst * share, 1), burst - 1)
    if fburst < 1 then frate, fburst = 0, 0 end
  end
  return rate - frate, burst - fburst, frate, fburst
end
local function empty(rate, lead) return 0 - math.ceil(lead * rate) end
local function gate(key, now, most)
  local till = tonumber(redis.call('GET', key) or '0') or 0
  if till > now + most then
    till = now + most
    redis.call('SET', key, whole(till), 'PX', whole(math.ceil(most / 1000) + 1000))
  end
  return till
end
local function left(have, at, now, rate, burst)
  if now > at then return math.min(have + math.floor((now - at) * rate), math.floor(burst * PART)) end
  return have
end
local function keep(burst, n, reserve)
  return math.min(math.ceil(reserve * PART), math.max(math.floor(burst * PART) - n * PART, 0))
end
local function spare(have, at, now, rate, burst, reserve)
  return math.max(math.floor((left(have, at, now, rate, burst) - keep(burst, 1, reserve)) / PART), 0)
end
local function take(have, at, now, rate, burst, n, reserve, max_wait)
  local left = left(have, at, now, rate, burst)
  local lack = n * PART + keep(burst, n, reserve) - left
  local wait = 0
  if lack > 0 then wait = math.ceil(lack / rate) end
  if lack > math.floor(max_wait * rate) then return false, wait, have, math.min(at, now) end
  return true, wait, left - n * PART, now
end
`

// luaTake is one take from a shared bucket.
//
//	KEYS  state (hash), gate, members (sorted set: who was last seen when)
//	ARGV  class, rate, burst, reserve, floor, max wait, lead, silence (all µs), a silent member's part, least members,
//	      the furthest that the gate may lie ahead (µs)
//	gives granted (0 or 1), wait µs, what is left of the gate µs, now
//
// The class "spare" takes nothing: granted is then how many grants background work would get now.
//
// Members that went without a word are taken to be on a share of their own, and it is kept out of this bucket until they
// are back, replaced, or given up. A state that is not there is an empty bucket.
var luaTake = redis.NewScript(luaMeter + `
local now = now()
local till = gate(KEYS[2], now, tonumber(ARGV[11]))
if till > now then return {0, 0, till - now, now} end
local rate, burst, reserve, share = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local max_wait, lead, silence = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])
local s = redis.call('HMGET', KEYS[1], 'main', 'main_at', 'floor', 'floor_at', 'peak')
local live = redis.call('ZCOUNT', KEYS[3], '(' .. whole(now - silence), '+inf')
local peak = math.max(tonumber(s[5] or '0'), live)
if peak > live then
  local keep = 1 - tonumber(ARGV[9]) * (peak - live) / math.max(peak, tonumber(ARGV[10]))
  rate, burst = rate * keep, math.max(burst * keep, 1)
end
local mrate, mburst, frate, fburst = split(rate, burst, share)
local main, main_at, floor, floor_at = tonumber(s[1]), tonumber(s[2]), tonumber(s[3]), tonumber(s[4])
if not (main and main_at and floor and floor_at) then
  main, main_at, floor, floor_at = empty(mrate, lead), now, empty(frate, lead), now
end
if frate == 0 then floor = math.min(floor, 0) end
if ARGV[1] == 'spare' then
  local n = spare(main, main_at, now, mrate, mburst, reserve * mburst)
  if frate > 0 then n = n + spare(floor, floor_at, now, frate, fburst, 0) end
  return {n, 0, 0, now}
end
local ok, wait
if ARGV[1] == 'interactive' then
  ok, wait, main, main_at = take(main, main_at, now, mrate, mburst, 1, 0, max_wait)
else
  ok, wait, main, main_at = take(main, main_at, now, mrate, mburst, 1, reserve * mburst, 0)
  if not ok and frate > 0 then
    ok, wait, floor, floor_at = take(floor, floor_at, now, frate, fburst, 1, 0, 0)
  end
end
main, main_at, floor, floor_at = whole(main), whole(main_at), whole(floor), whole(floor_at)
if main ~= s[1] or main_at ~= s[2] or floor ~= s[3] or floor_at ~= s[4] then
  redis.call('HSET', KEYS[1], 'main', main, 'main_at', main_at, 'floor', floor, 'floor_at', floor_at)
end
return {ok and 1 or 0, wait, 0, now}
`)

// luaMember is what a replica says of itself.
//
//	KEYS  as above
//	ARGV  op, id, not after (µs, 0: whenever), known, silence, memory, rate, burst, floor, lead, hold (µs), as above
//	gives now, live members, the most of them that were live at once, or now, -1, -1 when it came too late
//
// look writes, to see whether that works, and changes nothing; enter makes a member, and empties the bucket for one that
// was on a share of its own (known > 0); beat says that it is there; leave that it takes no more. "peak" is the most
// members that were live at once within the memory; one that leaves with a word lowers it. What it is above the live ones
// are the missing. A newcomer is taken for one of them come back: processes restart far more often than they join while
// another is cut off. Where Redis lost the state, the bucket is empty and the peak what the member knows; only for a fleet
// that begins it fills at once, and not after what may be booked.
var luaMember = redis.NewScript(luaMeter + `
local now = now()
local op, id, limit, known = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local silence, memory = tonumber(ARGV[5]), tonumber(ARGV[6])
if limit > 0 and now > limit then return {now, -1, -1} end
local function living() return redis.call('ZCOUNT', KEYS[3], '(' .. whole(now - silence), '+inf') end
local s = redis.call('HMGET', KEYS[1], 'peak', 'peak_at', 'main')
local peak, peak_at = tonumber(s[1] or '0'), tonumber(s[2] or '0')
if op == 'look' then
  redis.call('HSET', KEYS[1], 'looked_at', whole(now))
  return {now, living(), peak}
end
if op == 'leave' then
  local seen = tonumber(redis.call('ZSCORE', KEYS[3], id) or '0')
  redis.call('ZREM', KEYS[3], id)
  if seen > now - silence then peak = math.max(peak - 1, 0) end
  redis.call('HSET', KEYS[1], 'peak', whole(peak))
  return {now, living(), peak}
end
redis.call('ZADD', KEYS[3], whole(now), id)
redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', whole(now - memory))
local live = living()
if op == 'enter' or not s[3] then
  peak, peak_at = math.max(peak, known, live), now
elseif live >= peak or now - peak_at > memory or now < peak_at then
  peak, peak_at = live, now
end
if not s[3] or (op == 'enter' and known > 0) then
  local mrate, _, frate = split(tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9]))
  local lead, at = tonumber(ARGV[10]), whole(now)
  if op == 'enter' and known == 0 then lead = 0 end
  redis.call('HSET', KEYS[1], 'main', whole(empty(mrate, lead)), 'main_at', at, 'floor', whole(empty(frate, lead)), 'floor_at', at)
end
local hold, till = tonumber(ARGV[11]), gate(KEYS[2], now, tonumber(ARGV[12]))
if hold > 0 and now + hold > till then
  redis.call('SET', KEYS[2], whole(now + hold), 'PX', whole(math.ceil(hold / 1000) + 1000))
end
redis.call('HSET', KEYS[1], 'peak', whole(peak), 'peak_at', whole(peak_at))
redis.call('PEXPIRE', KEYS[1], 604800000)
redis.call('PEXPIRE', KEYS[3], 604800000)
return {now, live, peak}
`)

// luaHold moves the gate, and only ever later.
//
//	KEYS  gate
//	ARGV  for how long, µs
var luaHold = redis.NewScript(`
local t = redis.call('TIME')
local till = tonumber(t[1]) * 1000000 + tonumber(t[2]) + tonumber(ARGV[1])
if till > (tonumber(redis.call('GET', KEYS[1]) or '0') or 0) then
  redis.call('SET', KEYS[1], string.format('%.0f', till), 'PX', string.format('%.0f', math.ceil(tonumber(ARGV[1]) / 1000) + 1000))
end
return {1}
`)

// luaQuota is one take from a caller's bucket, which is full when it is not there.
//
//	KEYS  what it has, and when
//	ARGV  rate, burst, n
//	gives granted (0 or 1), wait µs
var luaQuota = redis.NewScript(luaMeter + `
local now = now()
local rate, burst, n = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local have, at = math.floor(burst * PART), now
local s = redis.call('GET', KEYS[1])
if s then
  local h, a = string.match(s, '^(%d+) (%d+)$')
  if h then have, at = tonumber(h), tonumber(a) end
end
local ok, wait, left, left_at = take(have, at, now, rate, burst, n, 0, 0)
if ok or left_at ~= at then
  redis.call('SET', KEYS[1], whole(left) .. ' ' .. whole(left_at), 'PX', whole(math.ceil((burst * PART - left) / rate / 1000) + 1000))
end
return {ok and 1 or 0, wait}
`)

// run sends a script by its hash, and by its text when Redis does not know it: then nothing of it ran, so nothing is
// charged twice. No other failure is answered by a second try.
func run(ctx context.Context, c redis.UniversalClient, s *redis.Script, keys []string, args ...any) ([]int64, error) {
	got, err := s.EvalSha(ctx, c, keys, args...).Int64Slice()
	if redis.HasErrorPrefix(err, "NOSCRIPT") {
		got, err = s.Eval(ctx, c, keys, args...).Int64Slice()
	}
	return got, err
}
