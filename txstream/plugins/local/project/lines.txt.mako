the cat and the dog
The dog sleeps
a cat
