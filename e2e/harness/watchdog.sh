# Reads what to clean up from its input; does so when the input ends, which is when the test process has ended.
# Lines: "+ GROUP", "- GROUP", "dir PATH".
trap '' INT TERM HUP
groups=' '
dirs=''
while read -r what arg; do
  case $what in
    +) groups="$groups$arg " ;;
    -) groups="${groups%% "$arg" *} ${groups#* "$arg" }" ;;
    dir) dirs="$dirs $arg" ;;
  esac
done
for group in $groups; do
  kill -s KILL -- "-$group"
done
for dir in $dirs; do
  # A process may take a moment to die and may still write.
  tries=0
  until rm -rf -- "$dir" || [ "$tries" -ge 100 ]; do
    tries=$((tries + 1))
    sleep 0.1
  done
done
