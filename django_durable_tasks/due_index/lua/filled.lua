-- KEYS: the mark "filled". ARGV: the new mark (ms), the one that was seen before ('' for none).
-- A mark that somebody took away meanwhile stays away: a change was lost, and all is to be filled again.
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[2] then
  return 0
end
redis.call('SET', KEYS[1], ARGV[1], 'PXAT', ARGV[1])
return 1
