"""Results leave for topics: what a batch has for a topic is stored with its results, in the same commit, and
sent once it is committed, in the order of txids. Users import `KafkaSinkBolt` from `txstream`."""
